"""The structs of include/choir as ctypes; tests compare their layout with tests/libchoir.abi."""

import ctypes as c

I64 = c.c_int64


class _Checked(c.Structure):
    """ctypes cuts an integer to its field's width without a word: one that does not fit is refused here."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        kept = getattr(self, name)
        if isinstance(kept, int) and kept != value:
            raise OverflowError(f"{name} is {value}, which its field cannot hold")


def struct(name, *fields, reserved=0):
    """A struct as include/choir has it; tests compare the layout with tests/libchoir.abi."""
    more = [("reserved", I64 * reserved)] if reserved else []
    return type(name, (_Checked,), {"_fields_": list(fields) + more})


def _all(kind, names):
    return [(name, kind) for name in names.split()]


_NAME = c.c_char * 32
RouterOptions = struct(
    "RouterOptions",
    ("name", _NAME),
    *_all(c.c_double, "capacity_factor eval_capacity_factor"),
    ("pool", _NAME),
    *_all(c.c_double, "aux_loss_weight jitter"),
    *_all(c.c_int, "random_second group_size cap experts_per_token"),
    ("solver", _NAME),
    ("solver_lambda", c.c_double),
    ("solver_iterations", c.c_int),
    *_all(c.c_double, "consistency_weight decay"),
    ("threshold_after", I64),
    ("normalize_gates", c.c_int),
    reserved=16,
)
ModelConfig = struct(
    "ModelConfig",
    ("name", _NAME),
    *_all(
        c.c_int,
        "vocab_size layers d_model d_hidden d_expert heads d_head experts moe_every rel_buckets "
        "rel_max_distance",
    ),
    ("norm_eps", c.c_double),
    ("router", RouterOptions),
    reserved=16,
)
TrainConfig = struct(
    "TrainConfig",
    *_all(c.c_int, "sequence_length batch_sequences shards accumulate"),
    ("steps", I64),
    ("optimizer", _NAME),
    ("rate", c.c_double),
    *_all(I64, "warmup_steps constant_steps schedule_start"),
    ("freeze", _NAME),
    *_all(c.c_double, "beta1 beta2 weight_decay clip_norm dropout"),
    ("seed", c.c_uint64),
    ("compute", _NAME),
    *_all(I64, "eval_every eval_sequences checkpoint_every"),
    ("keep_checkpoints", c.c_int),
    ("expert_copies", c.c_int),
    ("file_bytes", c.c_int64),
    reserved=15,
)
ParallelConfig = struct("ParallelConfig", ("wire", _NAME), reserved=2)
Config = struct(
    "Config", ("model", ModelConfig), ("train", TrainConfig), ("parallel", ParallelConfig), reserved=2
)

Certificate = struct(
    "Certificate",
    *_all(I64, "assignments iterations"),
    *_all(c.c_double, "gap expert_before token_before"),
    *_all(c.c_int, "expert_after token_after"),
    ("over_cap", I64),
    reserved=8,
)
_INTS, _FLOATS, _DOUBLES, _LONGS = (c.POINTER(t) for t in (c.c_int, c.c_float, c.c_double, I64))
Routing = struct(
    "Routing",
    *_all(c.c_int, "layer moe tokens experts"),
    ("token", c.POINTER(c.c_int32)),
    ("valid", c.POINTER(c.c_uint8)),
    *_all(_INTS, "expert_begin slot_token"),
    ("slot_gate", _FLOATS),
    *_all(_INTS, "token_begin token_slot"),
    *_all(_FLOATS, "scores thresholds cutoffs"),
    ("demand", _INTS),
    ("capacity", c.c_int),
    ("dropped", I64),
    ("aux_loss", c.c_double),
    ("certificate", Certificate),
    ("target", c.c_double),
)
RoutingCallback = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(Routing))
RouteRequest = struct(
    "RouteRequest",
    ("options", c.POINTER(RouterOptions)),
    *_all(c.c_int, "n e"),
    *_all(c.c_void_p, "scores tokens valid"),
    *_all(c.c_int, "is_logits sequence_length training"),
    ("seed", c.c_uint64),
    ("thresholds", c.c_void_p),
    reserved=7,
)
RouterOption = struct("RouterOption", *_all(c.c_char_p, "name help"), ("value", _NAME), reserved=4)

RunOptions = struct(
    "RunOptions",
    *_all(c.c_char_p, "compute backend"),
    *_all(c.c_int, "emulate_bf16 threads unchecked"),
    ("ranks", c.c_void_p),
    ("shards", I64),
    reserved=6,
)
Parameter = struct(
    "Parameter",
    ("name", c.c_char_p),
    ("dims", c.c_int),
    ("shape", I64 * 3),
    *_all(_FLOATS, "data gradient"),
    ("trained", c.c_int),
    reserved=4,
)
ForwardResult = struct("ForwardResult", *_all(c.c_double, "loss aux_loss"), reserved=8)
SessionOptions = struct("SessionOptions", *_all(c.c_int, "slots length chunk"), reserved=8)
Prompt = struct(
    "Prompt", ("text", c.c_char_p), ("size", c.c_size_t), ("tokens", c.c_void_p), ("count", c.c_int), reserved=4
)
Generated = struct(
    "Generated",
    ("text", c.c_void_p),
    ("size", c.c_size_t),
    ("tokens", c.POINTER(c.c_int32)),
    *_all(c.c_int, "count prompt_count end"),
    reserved=4,
)
TextCallback = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_int, c.c_void_p, c.c_size_t)
DoneCallback = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.POINTER(Generated))
StopCallback = c.CFUNCTYPE(c.c_int, c.c_void_p)
GenerateOptions = struct(
    "GenerateOptions",
    ("max_tokens", c.c_int),
    ("temperature", c.c_double),
    ("top_k", c.c_int),
    ("top_p", c.c_double),
    ("seed", c.c_uint64),
    ("stops", c.POINTER(c.c_char_p)),
    *_all(c.c_int, "batch chunk"),
    ("text", TextCallback),
    ("done", DoneCallback),
    ("stop", StopCallback),
    ("context", c.c_void_p),
    reserved=8,
)
GenerateResult = struct(
    "GenerateResult",
    ("sequences", c.POINTER(Generated)),
    ("count", c.c_int),
    *_all(I64, "prompt_tokens tokens"),
    *_all(c.c_double, "prompt_seconds seconds"),
    reserved=8,
)
ProgressCallback = c.CFUNCTYPE(c.c_int, c.c_void_p, I64, I64)
EvalOptions = struct(
    "EvalOptions",
    *_all(c.c_char_p, "data text"),
    ("sequences", I64),
    *_all(c.c_int, "in_order batch_sequences sequence_length"),
    ("progress", ProgressCallback),
    ("context", c.c_void_p),
    reserved=8,
)
EvalResult = struct(
    "EvalResult",
    *_all(c.c_double, "loss perplexity bits_per_byte unigram_loss"),
    *_all(I64, "tokens bytes"),
    ("routing", c.c_char_p),
    ("looks_across_tokens", c.c_int),
    reserved=8,
)
TrainerResult = struct(
    "TrainerResult",
    *_all(I64, "step targets"),
    *_all(c.c_double, "loss aux_loss rate gradient_norm dropped unrouted imbalance"),
    reserved=8,
)
ScoreRequest = struct("ScoreRequest", ("context", Prompt), ("continuation", Prompt), reserved=2)
Score = struct(
    "Score",
    ("log_likelihood", c.c_double),
    *_all(c.c_int, "greedy count"),
    ("tokens", c.POINTER(c.c_int32)),
    ("log_probability", _FLOATS),
    reserved=2,
)
ScoreOptions = struct(
    "ScoreOptions",
    *_all(c.c_int, "batch chunk"),
    ("progress", ProgressCallback),
    ("context", c.c_void_p),
    reserved=8,
)
ScoreResult = struct(
    "ScoreResult", ("score", c.POINTER(Score)), *_all(I64, "count tokens"), ("seconds", c.c_double), reserved=8
)
