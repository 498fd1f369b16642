"""TorchScript graphs: converted to FX graphs for the compiler, and changed accordingly."""
