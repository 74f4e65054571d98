"""The warning that a caption may be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from captioner.word import Word


def doubt_of(words: Sequence[Word], alternatives: Iterable[Sequence[Word]]) -> str | None:
    """Return the warning for an untrusted caption; None if none of its words is doubtful.

    The warning names the least trusted word. If an alternative begins with the same words, the
    warning also names the word that the alternative has instead.

    Args:
        words: the words of the caption.
        alternatives: the words of its alternatives, best first.
    """
    doubtful = [at for at, word in enumerate(words) if word.doubtful]
    if not doubtful:
        return None
    least = min(doubtful, key=lambda at: words[at].trust or 0.0)
    texts = [word.text for word in words]
    warning = f"This may be wrong: '{texts[least]}'"
    for sentence in alternatives:
        if len(sentence) <= least or [word.text for word in sentence[:least]] != texts[:least]:
            continue
        if sentence[least].trust is not None and sentence[least].text != texts[least]:
            return f"{warning}, or '{sentence[least].text}'"
    return warning
