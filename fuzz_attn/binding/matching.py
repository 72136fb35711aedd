"""Matching: the binding of a signature, by the names of its parameters and by what the user states.

Names come from the published interfaces of all families, each with its conventions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from fuzz_attn.binding.binding import LEFT_OUT, Binding, Constant, OutputForm, ScaleForm, Signature, WindowSpelling
from fuzz_attn.binding.roles import PACKED, ROLE_OF, ROLES
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.errors import BindingError

Names: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class Published:
    """A published interface. ``binding`` has all of its parameters.

    A callable must take the ``required`` ones. The ``opt_in`` ones are passed only to callables that name them, never
    through ``**kwargs``.
    """

    binding: Binding
    required: Names
    opt_in: Names

    def misfit(self, signature: Signature) -> str:
        """Return why a signature is not this interface; empty if it is."""
        missing = sorted(name for name in self.required if not signature.takes(name))
        if missing:
            return f"lacks {', '.join(missing)}"
        if signature.positional:
            return f"requires {', '.join(sorted(signature.positional))} as positional-only arguments"
        unknown = sorted(signature.required - set(self.binding.roles))
        return f"requires {', '.join(unknown)}, which the interface does not have" if unknown else ""

    def passed(self, signature: Signature) -> dict[str, str]:
        """Return the role of each parameter that a call of such a callable may pass."""
        return {name: role for name, role in self.binding.roles.items() if self._takes(signature, name)}

    def _takes(self, signature: Signature, name: str) -> bool:
        return name in signature.names or (signature.takes_any_keyword and name not in self.opt_in)


_SEGMENTS: Final = {
    "seq_threshold_3D": "segment_threshold",
    "num_par_softmax_segments": "scratch_segments",
    "softmax_segm_output": "segment_outputs",
    "softmax_segm_max": "segment_maxima",
    "softmax_segm_expsum": "segment_sums",
}

_SPLIT_OPTIONS: Final = {
    "kv_cache_dtype": "kv_cache_dtype",
    "k_scale": "k_scale",
    "v_scale": "v_scale",
    "alibi_slopes": "alibi_slopes",
    "sliding_window": "window",
    "sm_scale": "softmax_scale",
    "sinks": "sinks",
    "tile_size": "tile_size",
    "causal": "causal",
}
"""What the families with split caches take in addition."""

_SPLIT: Final = Binding(
    layout="split",
    output="in_place",
    window="keys",
    scales="tensor",
    scale_direction="multiply",
    fp8="typed",
    off={"window": None, "k_scale": 1.0, "v_scale": 1.0},  # published launchers always need a scale
    implied=("softmax_scale",),
)

UNIFIED: Final = Published(
    binding=Binding(
        family="unified",
        roles={
            "q": "query",
            "k": "key_cache",
            "v": "value_cache",
            "out": "output",
            "cu_seqlens_q": "query_start_loc",
            "max_seqlen_q": "max_query_len",
            "seqused_k": "seq_lens",
            "max_seqlen_k": "max_seq_len",
            "softmax_scale": "softmax_scale",
            "causal": "causal",
            "window_size": "window",
            "block_table": "block_table",
            "softcap": "softcap",
            "q_descale": "q_scale",
            "k_descale": "k_scale",
            "v_descale": "v_scale",
            "alibi_slopes": "alibi_slopes",
            "qq_bias": "qq_bias",
            "sinks": "sinks",
            "output_scale": "out_scale",
            "kv_quant_mode": "kv_quant_mode",
            "num_segments": "num_segments",
            "tile_size": "tile_size",
            **_SEGMENTS,
        },
        layout="rows",
        output="in_place",
        window="pair",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": (-1, -1)},
    ),
    required=frozenset(("q", "k", "v", "out", "cu_seqlens_q", "seqused_k", "softmax_scale", "block_table")),
    opt_in=frozenset(("kv_quant_mode", "num_segments", "tile_size", *_SEGMENTS)),
)
"""`unified_attention`: prefill and decode in one launch."""


def _split(family: str, required: dict[str, str], options: dict[str, str]) -> Published:
    """Return an interface of a family with split caches."""
    roles = {**required, **options, **_SPLIT_OPTIONS}
    stated = {name: getattr(_SPLIT, name) for name in _SPLIT.__struct_fields__}
    binding = Binding(**{**stated, "family": family, "roles": roles})
    return Published(binding, required=frozenset(required), opt_in=frozenset(("tile_size", "causal")))


PAGED: Final = _split(
    "paged",
    {
        "query": "query",
        "output": "output",
        "key_cache": "key_cache",
        "value_cache": "value_cache",
        "block_table": "block_table",
        "seq_lens": "seq_lens",
    },
    {
        "query_start_loc": "query_start_loc",
        "output_scale": "out_scale",
        "filter_by_query_len": "skips_others",
    },
)
"""Paged decode: one query token of each sequence."""

CONTEXT: Final = _split(
    "context",
    {
        "q": "query",
        "k": "new_keys",
        "v": "new_values",
        "o": "output",
        "k_cache": "key_cache",
        "v_cache": "value_cache",
        "b_loc": "block_table",
        "b_start_loc": "query_start_loc",
        "b_seq_len": "seq_lens",
    },
    {
        "max_seq_len": "max_seq_len",
        "max_input_len": "max_query_len",
        "skip_decode": "skips_others",
        "fp8_out_scale": "out_scale",
    },
)
"""`context_attention_fwd`: densely packed new tokens on a paged context."""

CHUNKED: Final = _split(
    "chunked",
    {
        "query": "query",
        "key": "new_keys",
        "value": "new_values",
        "output": "output",
        "key_cache": "key_cache",
        "value_cache": "value_cache",
        "block_table": "block_table",
        "query_start_loc": "query_start_loc",
        "seq_lens": "seq_lens",
    },
    {
        "max_seq_len": "max_seq_len",
        "max_query_len": "max_query_len",
        "output_scale": "out_scale",
    },
)
"""`chunked_prefill_paged_decode`: context attention, then paged decode for sequences with one query token."""

MLA_DECODE: Final = Published(
    binding=Binding(
        family="mla_decode",
        roles={
            "q": "query",
            "latent_cache": "latent_cache",
            "out": "output",
            "block_table": "block_table",
            "seq_lens": "seq_lens",
            "softmax_scale": "softmax_scale",
            "lse": "lse",
            "num_splits": "num_segments",
            "tile_size": "tile_size",
        },
        layout="latent",
        output="in_place",
        off={"lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(("q", "latent_cache", "out", "block_table", "seq_lens")),
    opt_in=frozenset(("num_splits", "tile_size")),
)
"""`mla_decode`: one query token of each sequence over a latent cache."""

_EXTEND: Final = {
    "q": "query",
    "k": "new_keys",
    "v": "new_values",
    "out": "output",
    "k_buffer": "key_cache",
    "v_buffer": "value_cache",
    "qo_indptr": "query_start_loc",
    "kv_indptr": "kv_indptr",
    "kv_indices": "kv_indices",
}

EXTEND: Final = Published(
    binding=Binding(
        family="extend",
        roles={
            **_EXTEND,
            "max_len_extend": "max_query_len",
            "sm_scale": "softmax_scale",
            "is_causal": "causal",
            "top_left": "top_left",
            "window_size": "window",
            "chunk_size": "chunk_size",
            "custom_mask": "custom_mask",
            "mask_indptr": "mask_indptr",
            "logit_cap": "softcap",
            "sinks": "sinks",
            "k_scale": "k_scale",
            "v_scale": "v_scale",
            "output_scale": "out_scale",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="pair",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": (-1, -1)},
        implied=("softmax_scale",),
    ),
    required=frozenset(_EXTEND),
    opt_in=frozenset(("tile_size",)),
)
"""`extend_attention`: new tokens packed, the slots of each context in a list, and masks other than the causal one."""

_TOKEN_DECODE: Final = {
    "q": "query",
    "k_buffer": "key_cache",
    "v_buffer": "value_cache",
    "out": "output",
    "kv_indptr": "kv_indptr",
    "kv_indices": "kv_indices",
}

TOKEN_DECODE: Final = Published(
    binding=Binding(
        family="token_decode",
        roles={
            **_TOKEN_DECODE,
            "att_out": "split_outputs",
            "att_lse": "split_lses",
            "num_kv_splits": "seq_splits",
            "max_kv_splits": "max_splits",
            "sm_scale": "softmax_scale",
            "k_scale": "k_scale",
            "v_scale": "v_scale",
            "logit_cap": "softcap",
            "sinks": "sinks",
            "sliding_window": "window",
            "output_scale": "out_scale",
            "lse": "lse",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="keys",
        scales="tensor",
        scale_direction="multiply",
        fp8="typed",
        off={"window": None, "lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(_TOKEN_DECODE),
    opt_in=frozenset(("att_out", "att_lse", "num_kv_splits", "max_kv_splits", "tile_size")),
)
"""`token_decode`: one query token of each sequence, the slots of its keys in a list, attention by splits."""

_VARLEN: Final = {
    "q": "query",
    "k": "key_cache",
    "v": "value_cache",
    "out": "output",
    "cu_seqlens_q": "query_start_loc",
    "cu_seqlens_k": "key_start_loc",
}

VARLEN: Final = Published(
    binding=Binding(
        family="varlen",
        roles={
            **_VARLEN,
            "max_seqlen_q": "max_query_len",
            "max_seqlen_k": "max_seq_len",
            "seqused_k": "seq_lens",
            "softmax_scale": "softmax_scale",
            "causal": "causal",
            "top_left": "top_left",
            "window_size": "window",
            "softcap": "softcap",
            "alibi_slopes": "alibi_slopes",
            "sinks": "sinks",
            "softmax_lse": "lse",
            "tile_size": "tile_size",
        },
        layout="slots",
        output="in_place",
        window="pair",
        off={"window": (-1, -1), "seq_lens": None, "lse": None},
        implied=("softmax_scale",),
    ),
    required=frozenset(_VARLEN),
    opt_in=frozenset(("tile_size",)),
)
"""`varlen_attention`: queries, keys and values packed, with lengths of their own."""

PUBLISHED: Final = {
    "unified": UNIFIED,
    "chunked": CHUNKED,
    "context": CONTEXT,
    "paged": PAGED,
    "extend": EXTEND,
    "mla_decode": MLA_DECODE,
    "token_decode": TOKEN_DECODE,
    "varlen": VARLEN,
}
"""Every family's interface. A signature that fits several belongs to the first of them."""


_NEUTRAL: Final = "left at its default"
_STATED: Final = "stated"

_QUERY: Final = ("query", "batched_query")
_CACHES: Final = (
    ("key_cache", "latent_cache", "latent_pages"),
    ("value_cache", "latent_cache", "latent_pages"),
)
_LENGTHS: Final = ("seq_lens", "context_lens", "kv_indptr", "key_start_loc")
_PAGES: Final = ("block_table", "kv_indices", "slot_table")
_QUERIES: Final = ("query_start_loc", "query_lens")
"""Sets of roles of which a signature must have one each; which sets depends on the family."""

_FOREIGN: Final = ("softcap", "qq_bias", "window_left", "window_right", "slot_table", "kv_indices")
"""Roles that mark a signature as another interface than the published one whose required names it has."""


@dataclass(frozen=True)
class Match:
    """A binding, and for each parameter why it has its role. ``published``: the conventions come with the names."""

    binding: Binding
    reasons: dict[str, str] = field(default_factory=dict)
    published: bool = False
    family_is_open: bool = False
    """Whether the names do not tell where the keys of new tokens are read: packed, or from the cache."""


def match_of(signature: Signature, family: Family | None = None, stated: Binding | None = None) -> Match:
    """Return the binding of a signature.

    A signature with the names of a published interface has its conventions too; in any other the names give the roles,
    and conventions that nothing states stay open. ``stated`` wins over both. Raises :class:`BindingError`, in one line,
    for a parameter without a role, two parameters with one role, and a role that is missing.
    """
    stated = stated or Binding()
    if stated.whole:
        return Match(stated, dict.fromkeys(_stated_names(stated), _STATED) | _neutral(signature, stated))
    family = stated.family or family
    interface = _published(signature, family, stated)
    if interface is None:
        return _by_synonyms(signature, family, stated)
    unstated = {name: role for name, role in interface.passed(signature).items() if name not in _stated_names(stated)}
    binding = _overruled(replace(interface.binding, roles=unstated), stated)
    require_each_once(binding.roles)
    reasons = dict.fromkeys(unstated, f"name of the {binding.family} interface")
    reasons |= dict.fromkeys(_stated_names(stated), _STATED) | _neutral(signature, binding)
    beside = replace(stated, domain={}, rounding={}, promises=(), paths={}, contracts=True)
    return Match(binding, reasons, published=beside == Binding(family=stated.family))


def _stated_names(stated: Binding) -> frozenset[str]:
    """Return the parameters of which a user states anything."""
    return frozenset((*stated.roles, *stated.without_role))


def _published(signature: Signature, family: Family | None, stated: Binding) -> Published | None:
    """Return the published interface that a signature has, without parameters of another one."""
    known = _stated_names(stated)
    rest = dataclasses.replace(signature, required=signature.required - known)
    for name in [family] if family else list(PUBLISHED):
        interface = PUBLISHED[name]
        foreign = {n for n in signature.names if ROLE_OF.get(n) in _FOREIGN} - {*interface.binding.roles, *known}
        if not interface.misfit(rest) and not foreign:
            return interface
    return None


def _overruled(binding: Binding, stated: Binding) -> Binding:
    """Return a binding with what the user states in place of its own."""
    own = Binding()
    changes: dict[str, Any] = {}
    for name in Binding.__struct_fields__:
        value = getattr(stated, name)
        if value != getattr(own, name):
            changes[name] = {**getattr(binding, name), **value} if name in ("roles", "off") else value
    return replace(binding, **changes)


def _neutral(signature: Signature, binding: Binding) -> dict[str, str]:
    bound = {*binding.roles, *binding.without_role, *binding.paths}
    return {name: _NEUTRAL for name in signature.names if name not in bound}


def _by_synonyms(signature: Signature, family: Family | None, stated: Binding) -> Match:
    roles, reasons = _roles(signature, stated)
    require_each_once(roles)
    bound = {role for role in roles.values() if role != LEFT_OUT}
    is_open = family is None and "new_keys" in bound
    family = family or _form(bound)
    roles = {name: role for name, role in roles.items() if _is_passed(name, role, bound, signature)}
    reasons = {name: why for name, why in reasons.items() if name in {*roles, *stated.without_role}}
    output = stated.output or ("in_place" if "output" in bound else "returned")
    missing = _missing_roles(bound, family, output)
    known = {*roles, *stated.without_role}
    _require_known(signature, known, missing)
    if missing:
        raise BindingError(_lack(missing, family, [name for name in signature.names if name not in known]))
    binding = replace(
        _conventions(signature, roles, stated),
        family=family,
        roles=roles,
        output=output,
    )
    return Match(binding, reasons | _neutral(signature, binding), family_is_open=is_open)


def _roles(signature: Signature, stated: Binding) -> tuple[dict[str, str], dict[str, str]]:
    """Return the role of each parameter that has one, and why."""
    roles, reasons = {}, dict.fromkeys(stated.without_role, _STATED)
    caches = {ROLE_OF.get(name) for name in signature.names} | set(stated.roles.values())
    packed = bool({"key_cache", "value_cache"} & caches)
    listed = bool({*_PAGES, "key_start_loc"} & caches)  # else new keys are all that there is
    for name in (*signature.names, *(set(stated.roles) - set(signature.names))):
        role = stated.roles.get(name) or (ROLE_OF.get(name) if name not in reasons else None)
        if role is None:
            continue
        if role != LEFT_OUT and role not in ROLES:
            raise BindingError(f"role {role!r} of parameter {name!r} is unknown: choose among {', '.join(ROLES)}")
        roles[name] = role if packed or not listed or name in stated.roles else PACKED.get(role, role)
        reasons[name] = _STATED if name in stated.roles else "name" if name == roles[name] else f"names the {role}"
    require_taken((*stated.roles, *reasons), signature)
    return roles, reasons


def require_taken(names: Iterable[str], signature: Signature) -> None:
    """Raise :class:`BindingError` for a parameter that a binding states and the signature lacks."""
    unknown = [name for name in names if not signature.takes(name)]
    if unknown:
        raise BindingError(f"the binding states parameter {unknown[0]!r}, which the signature lacks")


def require_each_once(roles: Mapping[str, str]) -> None:
    """Raise :class:`BindingError` for two parameters with one role."""
    first: dict[str, str] = {}
    for name, role in roles.items():
        other = first.setdefault(role, name)
        if role != LEFT_OUT and other != name:
            raise BindingError(
                f"has two parameters for the role {role}: {other} and {name}; state one as [roles] {name} = "
                f'"default" (or another role) in a binding file'
            )


def _form(bound: set[str]) -> Family:
    """Return what a signature with these roles computes."""
    if {"latent_cache", "latent_pages"} & bound:
        return "mla_decode"
    if "key_start_loc" in bound and not bound & {*_PAGES, "new_keys", "new_values"}:
        return "varlen"
    if {"new_keys", "new_values"} & bound:
        return "context"
    return "unified" if bound & set(_QUERIES) else "paged"


def _is_passed(name: str, role: str, bound: set[str], signature: Signature) -> bool:
    """Return whether an argument is passed: not if it is optional and another role says the same."""
    if role == LEFT_OUT or name in signature.required:
        return True
    return not bound & set(ROLES[role].spare)


def _require_known(signature: Signature, bound: set[str], missing: list[tuple[str, ...]]) -> None:
    """Refuse a required parameter that has no role; the message names the roles of which it may be one."""
    if signature.positional:
        names = ", ".join(sorted(signature.positional))
        raise BindingError(f"requires {names} as positional-only arguments, which a binding cannot pass by name")
    unknown = [name for name in signature.names if name in signature.required and name not in bound]
    if unknown:
        lacking = f"No parameter has the role {_in_words(missing)} yet" if missing else "All needed roles are taken"
        raise BindingError(
            f"requires parameter {unknown[0]!r}, which has no role; state it in a binding file, as [roles] "
            f"{unknown[0]} = ROLE, or under [constants], [tensors] or [sizes]. {lacking}"
        )


def _missing_roles(bound: set[str], family: Family, output: OutputForm) -> list[tuple[str, ...]]:
    """Return the roles, of each set one, without which the family's problem cannot be passed and that are missing."""
    packed = (("new_keys",), ("new_values",)) if FAMILIES[family].packs_new_keys else ()
    queries = (_QUERIES,) if FAMILIES[family].needs_query_starts else ()
    written = (("output",),) if output == "in_place" else ()
    without_cache = {"new_keys", "new_values"} <= bound and not bound & {"key_cache", "value_cache", *_PAGES}
    if FAMILIES[family].cache.is_packed:
        places: tuple[tuple[str, ...], ...] = (*_CACHES, ("key_start_loc",))
    else:
        places = (_LENGTHS,) if without_cache else (*_CACHES, _LENGTHS, _PAGES)
    return [roles for roles in (_QUERY, *packed, *written, *queries, *places) if not bound & set(roles)]


def _in_words(missing: list[tuple[str, ...]]) -> str:
    return ", ".join(" or ".join(roles) for roles in missing)


def _lack(missing: list[tuple[str, ...]], family: Family, spare: list[str]) -> str:
    """Return that roles are missing, and which of the parameters that are ``spare`` may have them."""
    what = f"has no parameter for {_in_words(missing)}, which {FAMILIES[family].words} needs"
    if not spare:
        return f"{what}; all of its parameters have other roles, so that a binding helps only if one of those is wrong"
    example = f"[roles] {spare[0] if len(spare) == 1 else 'PARAMETER'} = {missing[0][0]!r}"
    return f"{what}; state it in a binding file as {example}, of a parameter without a role: {', '.join(spare)}"


def _conventions(signature: Signature, roles: Mapping[str, str], stated: Binding) -> Binding:
    """Return the stated conventions, and those that the signature itself tells."""
    defaults = {role: signature.defaults[name] for name, role in roles.items() if name in signature.defaults}
    texts = {role: signature.annotations.get(name, "") for name, role in roles.items()}
    switched = ("window", "softcap", "k_scale", "v_scale", "q_scale", "lse")
    off = {role: defaults[role] for role in switched if role in defaults}
    has_slots = {"kv_indices", "slot_table"} & set(roles.values())
    latent = {"latent_cache", "latent_pages"} & set(roles.values())
    without = not {"key_cache", "value_cache"} & set(roles.values())
    told = Binding(
        layout="slots" if has_slots else "latent" if latent else "rows" if without else None,
        window=_window_told(defaults.get("window"), texts.get("window", "")) if "window" in texts else None,
        scales=_scales_told(defaults.get("k_scale"), texts.get("k_scale", "")) if "k_scale" in texts else None,
        off={role: constant for role, value in off.items() if (constant := _constant(value)) is not _NO_CONSTANT},
    )
    return _overruled(told, stated)


_NO_CONSTANT: Final[Any] = object()


def _constant(value: object) -> Constant:
    """Return a default as a constant of a binding; a marker where it is no plain value."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(each, int) for each in value):
        return tuple(value)
    marker: Constant = _NO_CONSTANT
    return marker


def _window_told(default: object, annotation: str) -> WindowSpelling | None:
    """Return the spelling of a window that a default or an annotation shows: only a pair shows itself."""
    return "pair" if isinstance(default, tuple | list) or annotation.lower().startswith("tuple") else None


def _scales_told(default: object, annotation: str) -> ScaleForm | None:
    """Return the form of scales that a default or an annotation shows."""
    if isinstance(default, float) or annotation.startswith("float"):
        return "float"
    return "tensor" if "Tensor" in annotation else None
