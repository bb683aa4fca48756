"""Streams and events of a device: what runs beside the computation, and what waits for what, as the script asks for it.

A point of a stream is two numbers: operators of the computing stream, and collectives, that are done when it is reached. The
streams of ``torch.cpu`` do nothing, so these take their place; ``device.py`` gives them to ``torch.cuda``.
"""

import weakref


def begin(session):
    import torch

    streams = Streams(session)
    session.parts["streams"] = streams

    class Stream:
        """A stream by its number. ready: operators of the computing stream that what it runs next waits for; calls:
        collectives that it waits for or runs."""

        def __init__(self, *args, **kwargs):
            streams.count += 1
            self.number, self.ready, self.calls = streams.count, 0, set()
            streams.alive.add(self)
            self.stream_id = self.cuda_stream = self.number
            self.device = torch.device("cpu")

        def wait_stream(self, stream):
            streams.wait(self, streams.point(stream))

        def wait_event(self, event):
            if event.of_step == streams.steps:
                streams.wait(self, event.point)

        def record_event(self, event=None):
            return (event or Event()).record(self)

        def query(self):
            return True

        def is_capturing(self):
            return False

        def synchronize(self):
            streams.host_waits(streams.point(self))

        def __enter__(self):
            streams.stack.append(self)
            return self

        def __exit__(self, *args):
            streams.stack.pop()

        def __eq__(self, other):
            return isinstance(other, Stream) and other.number == self.number

        def __hash__(self):
            return hash(self.number)

    class Event:
        """A point of a stream; one of a step that is over holds nothing up."""

        def __init__(self, *args, **kwargs):
            self.point = self.of_step = None

        def record(self, stream=None):
            self.point, self.of_step = streams.point(stream or streams.current()), streams.steps
            return self

        def wait(self, stream=None):
            (stream or streams.current()).wait_event(self)

        def query(self):
            return True

        def elapsed_time(self, other):
            return 1.0

        def synchronize(self):
            if self.of_step == streams.steps:
                streams.host_waits(self.point)

    class StreamContext:
        """``with torch.cuda.stream(s):``; None stays on the stream that is current."""

        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            streams.stack.append(self.stream or streams.current())

        def __exit__(self, *args):
            streams.stack.pop()

    streams.Stream, streams.Event, streams.StreamContext = Stream, Event, StreamContext
    streams.main = Stream()
    streams.stack = [streams.main]
    session.at_step.append(streams.forget)
    give(streams, torch.cpu)
    torch.Stream, torch.Event = Stream, Event


def give(streams, module):
    """Put the streams into a module of torch for one kind of device."""
    module.Stream, module.Event, module.StreamContext = streams.Stream, streams.Event, streams.StreamContext
    module.stream = streams.StreamContext
    module.current_stream = lambda device=None: streams.current()
    module.default_stream = lambda device=None: streams.main
    module.set_stream = lambda stream: streams.stack.__setitem__(-1, stream)


class Streams:
    """The streams of the process. main: that which computes."""

    def __init__(self, session):
        self.session = session
        self.count, self.steps = -1, 0
        self.alive = weakref.WeakSet()

    def current(self):
        return self.stack[-1]

    def point(self, stream):
        """Return what is done when a stream has run what was put into it so far."""
        if stream is self.main:
            return self.session.parts["operators"].position, frozenset(stream.calls)
        return stream.ready, frozenset(stream.calls)

    def wait(self, stream, point):
        """Let what a stream runs next wait for a point of another."""
        ready, calls = point
        if stream is self.main:
            self.session.parts["operators"].waits_for(calls)
        else:
            stream.ready = max(stream.ready, ready)
            stream.calls |= calls

    def host_waits(self, point):
        """Let what any stream runs next wait for a point: the host does, and launches nothing before it."""
        for stream in list(self.alive):
            self.wait(stream, point)

    def called(self, call, *, asynchronous):
        """Put a collective behind what its stream has; that stream waits for it unless it is asynchronous. Returns how many
        operators of the computing stream have to be done before it begins."""
        stream = self.current()
        ready = self.point(stream)[0]
        if not asynchronous:
            self.wait(stream, (ready, frozenset([call])))
        return ready

    def forget(self):
        """Begin a step: its operators are counted from 0."""
        self.steps += 1
        for stream in list(self.alive):
            stream.ready, stream.calls = 0, set()
