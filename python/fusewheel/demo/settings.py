"""The settings of a run of the demo."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
# The weights in the file's own blocks: computed in fp32, or with activations rounded to int8.
INT4, INT4_INT8 = "int4", "int4-int8"
FORMATS = (*DTYPES, INT4)
MODES = ("eager", "inductor", "fusewheel")
LLAMA_CPP = "llama.cpp"

BATCH, SEQUENCE = 4, 128


@dataclass(frozen=True)
class Settings:
    """The settings of a run; the defaults are those of the full run."""

    modes: tuple[str, ...] = MODES
    dtypes: tuple[str, ...] = FORMATS
    threads: int | None = None
    # A level of `isa.LEVELS` that the libraries are held to; None leaves the choice to them.
    isa: str | None = None
    # Whether llama.cpp runs the same file, where it is installed.
    llama_cpp: bool = True
    # Timed repeats of prefill and decode, and of the longer training step.
    repeats: int = 7
    train_repeats: int = 5
    # A phase that takes more seconds than this is timed once: such a baseline would take hours.
    long_s: float = 30.0
    new_tokens: int = 48
    # The first layers only; None keeps them all.
    layers: int | None = None
    # Seconds after which no further phase is begun; None sets no limit.
    time_limit_s: float | None = None
    quick: bool = False

    @property
    def reference(self) -> str:
        """The mode the others are checked against."""
        return "eager" if "eager" in self.modes else self.modes[0]

    @property
    def subject(self) -> str:
        """The mode the ratios are about."""
        return "fusewheel" if "fusewheel" in self.modes else self.modes[-1]

    @property
    def floating(self) -> tuple[str, ...]:
        """The formats of the main table: weights, activations and optimizer in one dtype."""
        return tuple(dtype for dtype in self.dtypes if dtype in DTYPES)

    @property
    def int4_modes(self) -> tuple[str, ...]:
        """The modes that run the 4-bit weights; to other backends their operators are opaque."""
        return tuple(mode for mode in self.modes if mode in (self.reference, self.subject))

    @property
    def baselines(self) -> tuple[str, ...]:
        """The modes the subject is compared with."""
        return tuple(mode for mode in self.modes if mode != self.subject)


# The run that finishes in three minutes on two cores.
QUICK = Settings(
    dtypes=("fp32",),
    train_repeats=3,
    new_tokens=16,
    layers=4,
    time_limit_s=160.0,
    quick=True,
)
