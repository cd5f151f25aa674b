"""How the examples of property tests are drawn; in the engines' environments, which run other folders, Hypothesis is not installed."""

from hypothesis import settings

# The same examples in every run, so that a failure belongs to a change; `pytest --hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)  # a busy machine is no failure
settings.load_profile("repeatable")
