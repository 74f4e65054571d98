"""Settings of property tests: a few examples, the same ones in every run."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

# A failure is not shrunk, which may take minutes. Examples may share fixtures of the function.
FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def texts(odd: str = "", **limits: int) -> st.SearchStrategy[str]:
    """Texts that files can hold, rich in `odd` characters; without NUL and surrogates."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    return st.text(st.sampled_from(odd) | characters if odd else characters, **limits)
