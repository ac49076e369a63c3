"""What `segue eval` tells of a language model's score: the figures and all that they depend on."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from segue.errors import InputError

if TYPE_CHECKING:
    from segue.config import Reading
    from segue.infer.evaluate import Score


def facts_of(score: "Score", ways: Mapping[str, bool], reading: "Reading") -> dict[str, Any]:
    """The figures of a score, and how the model was read."""
    from segue.infer.ngram_mixture import MixedScore

    mode = next((name for name, chosen in ways.items() if chosen), "memory")
    if not math.isfinite(score.nats):
        hint = "try a smaller --learning-rate" if mode == "dynamic" else "are the model's weights sound?"
        raise InputError(f"the loss is not finite; {hint}")
    mixed = isinstance(score, MixedScore) and {
        "ngrams": score.order,
        "bits_per_token_without_ngrams": score.alone.bits_per_token,
        "share_of_model": score.share,
    }
    return {
        "bits_per_byte": None if score.bytes is None else score.bits_per_byte,
        "bits_per_token": score.bits_per_token,
        "nats_per_token": score.nats / score.tokens,
        "perplexity": score.perplexity,
        "word_perplexity": score.word_perplexity,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "mean_steps": score.mean_steps,
        "way": mode,
        "segment": reading.segment,
        **reading.reach.model_dump(mode="json"),
        **({"memory": 0} if mode == "sliding" else {}),  # a window is read from an empty one
        **(mixed or {}),
    }


def settings_of(mode: object, int8: bool, kv_cache: str) -> dict[str, Any]:
    """The precision, and the settings of an adaptation, named as the options are."""
    from segue.infer.adapt import Cache, Dynamic

    precision = {"int8": int8, "kv_cache": kv_cache}
    if isinstance(mode, Dynamic):
        return {"learning_rate": mode.learning_rate, "decay": mode.decay, **precision}
    if isinstance(mode, Cache):
        cache = {"cache": mode.size, "cache_weight": mode.weight, "cache_flatness": mode.flatness}
        return {**cache, **precision}
    return precision


def text_of(facts: dict[str, Any]) -> str:
    """The same in two lines, or three with n-grams."""
    lossless = facts["bits_per_byte"] is not None
    bits = f"{facts['bits_per_byte']:.4f} bits per byte, " if lossless else ""
    size = f", {facts['bytes']:,} bytes" if lossless else ""
    words = f", per word {facts['word_perplexity']:.2f}" if facts["word_perplexity"] else ""
    steps = f"; {facts['mean_steps']:.2f} steps per token" if facts["mean_steps"] is not None else ""
    ranks = f"; {facts['ranks']} ranks, {facts['overlap']:,} warm-up tokens" if "ranks" in facts else ""
    ngrams = _ngrams_text(facts) if "ngrams" in facts else ""
    memory = "" if facts["way"] == "sliding" else f"memory {facts['memory']}, "
    reach = f"{memory}clamp {facts['clamp'] or 'none'}, span {facts['span'] or 'none'}"
    given = "".join(
        f", {name.replace('_', ' ')} {facts[name]:g}"
        for name in ("pinned", "learning_rate", "decay", "cache", "cache_weight", "cache_flatness")
        if facts.get(name)
    )
    given += ", int8" * facts["int8"] + f", kv cache {facts['kv_cache']}" * (facts["kv_cache"] != "exact")
    return (
        f"{facts['split']}: {bits}{facts['bits_per_token']:.4f} bits per token, "
        f"perplexity {facts['perplexity']:.3f}{words}\n"
        f"{facts['tokens']:,} tokens{size} scored in {facts['seconds']:.1f} s; "
        f"{facts['way']}, segment {facts['segment']}, {reach}{given}{steps}{ranks}{ngrams}"
    )


def _ngrams_text(facts: dict[str, Any]) -> str:
    alone = facts["bits_per_token_without_ngrams"]
    bits = (
        f"{alone * facts['tokens'] / facts['bytes']:.4f} bits per byte"
        if facts["bytes"]
        else f"{alone:.4f} bits per token"
    )
    return (
        f"\nmixed with n-grams up to order {facts['ngrams']}, weighed on the validation split; the model alone: {bits} "
        f"(its mean share: {100 * facts['share_of_model']:.0f} %)"
    )
