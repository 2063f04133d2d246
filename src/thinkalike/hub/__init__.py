"""The Hugging Face hub: requests that wait no longer than they should, causes of failures in one line, and commits."""

from thinkalike.hub.causes import cause_of, refused
from thinkalike.hub.client import be_patient, trouble
from thinkalike.hub.commits import ANSWER_SECONDS, Commit, forget_commits, resolved

__all__ = ["ANSWER_SECONDS", "Commit", "be_patient", "cause_of", "forget_commits", "refused", "resolved", "trouble"]
