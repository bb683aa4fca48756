"""A loop that marks its steps and their parts itself (stepscope/monitor): what its marks mean in the diary."""

from stepscope_hook.record import OTHER, PARTS

EVENTS = ("evaluation", "checkpoint")
"""Names of events, which are no part of a step."""


class Mark:
    """A part of the step, or an event, from ``enter`` to ``leave``. Neither raises."""

    def __init__(self, diary, name):
        self.diary = diary
        self.name = name
        self.token = None

    def enter(self):
        diary = self.diary
        if not diary.in_training_thread():
            return
        if self.name in EVENTS:
            self.token = diary.save_begins("phase")
        else:
            self.token = diary.part_begins(PARTS.get(self.name, OTHER))

    def leave(self):
        diary, token = self.diary, self.token
        self.token = None
        if token is None or not diary.in_training_thread():
            return
        if self.name in EVENTS:
            diary.save_ends(token, self.name)
        else:
            diary.part_ends(token)
