"""A long run under everything that can happen: arrivals, cancels, pressure, faults; looked at after each step.

python -m forerun.testing.soak --minutes 10 --seed 1 --model smollm2
python -m forerun.testing.soak --minutes 1 --seed 1                       the fake model, which is reproducible
"""

from forerun.testing.soak.fake import fake_subject
from forerun.testing.soak.run import Soak
from forerun.testing.soak.subject import SoakError, Subject
from forerun.testing.soak.summary import SoakSummary

__all__ = ["Soak", "SoakError", "SoakSummary", "Subject", "fake_subject"]
