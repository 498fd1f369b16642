"""The ways into the compiler: Dynamo, Inductor, export, and `explain`."""
