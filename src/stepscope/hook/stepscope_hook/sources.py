"""Whose batches the loop trains on, and what the workers of an epoch take to start."""

MOST = 64
"""Most iterators and datasets that are kept in mind."""


class Sources:
    """The data sets of one diary, which calls this as data come and as passes that train begin. Data sets are known by id().

    start: (begin, ns, workers) of those that an epoch's loader has just started, up to its first batch.
    """

    def __init__(self):
        self.trained = set()
        self.last = None
        """The data set that data came from last, since a pass trained."""
        self.iterators = {}
        """id() of an iterator that is not at its end -> passes that had trained as it was last asked."""
        self.passes = 0
        self.starting = self.start = None
        self.ended_ns = 0

    def came(self, place, exhausted, began_ns, ns, outside):
        """Note a batch, or an iterator of a loader. outside: in an evaluation, whose own wait it is."""
        if place is None:
            return
        iterator = getattr(place, "_dataset", None)
        dataset = iterator if iterator is not None else getattr(place, "dataset", None)
        if exhausted:
            self.iterators.pop(id(place), None)
            self.last = None
            if not outside and workers_of(place, "_"):
                self.ended_ns = ns
        elif iterator is None:
            workers = workers_of(place, "")
            self.starting = (id(dataset), began_ns, ns + self.ended_ns, workers) if workers else None
        else:
            self.batch(id(place), id(dataset), ns)

    def batch(self, iterator, dataset, ns):
        if self.starting is not None:
            key, began_ns, took_ns, workers = self.starting
            self.start = (began_ns, took_ns + ns, workers) if key == dataset else None
            self.starting = None
        if self.iterators.get(iterator, self.passes) != self.passes:  # training goes on between two of its batches
            self.trained.add(dataset)
        if len(self.iterators) > MOST:
            self.iterators.clear()
        self.iterators[iterator] = self.passes
        self.last = dataset

    def trains(self):
        """Note that what was fetched last is trained on. Returns the start of the epoch's workers, where there was one."""
        self.passes += 1
        if self.last is not None:
            if len(self.trained) > MOST:
                self.trained.clear()
            self.trained.add(self.last)
            self.last = None
        start, self.start = self.start, None
        return start

    def foreign(self):
        """Return whether the batch that came last is of data that are not trained on."""
        return self.last is not None and bool(self.trained) and self.last not in self.trained

    def step_ends(self):
        self.starting = self.start = None
        self.ended_ns = 0


def workers_of(place, prefix):
    """Count the worker processes that end with their epoch, of a loader, or of its iterator (prefix ``_``)."""
    if getattr(place, prefix + "persistent_workers", False):
        return 0
    return getattr(place, prefix + "num_workers", 0) or 0
