"""Samples for trainers, made of traces; needs no server.

outcome = TraceOutcome(trace, trajectory_id, reward, stop_reason, generation_time)
find_composer("skyrl")(ExportOptions(strict=True)).compose([outcome])      a GeneratorOutput
build_training_arrays(trace)                                               one trajectory as numpy arrays
decode(body, "npz")                                                        an answer of POST /sessions/{id}/samples
"""

from .arrays import TrainingArrays, build_training_arrays
from .auxiliary import AuxiliaryRules
from .composer import (
    Export,
    ExportOptions,
    PackedComposer,
    TraceComposer,
    as_lists,
    composer_names,
    export,
    find_composer,
)
from .encoding import ENCODINGS, decode, encode
from .outcome import Reward, TraceOutcome
from .pick import PICKERS, LeftOut, select
from .row import SampleRow, TurnRecord, VersionSpan

__all__ = [
    "ENCODINGS",
    "PICKERS",
    "AuxiliaryRules",
    "Export",
    "ExportOptions",
    "LeftOut",
    "PackedComposer",
    "Reward",
    "SampleRow",
    "TraceComposer",
    "TraceOutcome",
    "TrainingArrays",
    "TurnRecord",
    "VersionSpan",
    "as_lists",
    "build_training_arrays",
    "composer_names",
    "decode",
    "encode",
    "export",
    "find_composer",
    "select",
]
