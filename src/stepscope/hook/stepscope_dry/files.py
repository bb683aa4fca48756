"""Files that the script writes: they go to a folder that is thrown away, and are read from there again."""

import builtins
import functools
import io
import os
import shutil
import stat
import tempfile

WRITES = frozenset("wax+")
OF_LIBRARIES = ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "TORCH_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR",
                "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX")  # fmt: skip
"""Folders in which libraries keep what they made; they are no output of the script."""


class Files:
    """What would have been written. folder: in its place; kept: folders that are left to those who write them."""

    def __init__(self, session):
        self.session = session
        self.folder = tempfile.mkdtemp(prefix="stepscope-dry-")
        own = [
            self.folder,
            session.options["output"],
            os.path.join(os.path.expanduser("~"), ".cache"),
            "/dev",
            "/proc",
            "/sys",
        ]
        own += [os.environ[name] for name in OF_LIBRARIES if os.environ.get(name)]
        self.kept = tuple({end for path in own for end in (os.path.abspath(path), os.path.realpath(path))})
        self.gone, self.places = set(), set()
        self.changed = False
        self.real = {name: getattr(os, name) for name in CHANGES + LOOKS if hasattr(os, name)}
        self.real_open = io.open

    def begin(self):
        """From now on nothing is written where the script says."""
        temporary = os.path.join(self.folder, "temporary")
        self.real["mkdir"](temporary)
        tempfile.tempdir = os.environ["TMPDIR"] = temporary
        builtins.open = io.open = lambda *args, **kwargs: self.open(*args, **kwargs)
        for name, function in self.real.items():
            led = self.changing(name) if name in CHANGES else self.looking(name)
            setattr(
                os, name, functools.wraps(function)(led if name != "open" else lambda *a, **k: self.os_open(*a, **k))
            )
        shutil._use_fd_functions = False
        shutil._USE_CP_SENDFILE = False

    def end(self):
        for name, function in self.real.items():
            setattr(os, name, function)
        builtins.open = io.open = self.real_open
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- where a path leads

    def place_of(self, path, directory=None):
        """Return the absolute path of the script, and where it is in our folder; None: not to be led elsewhere."""
        if isinstance(path, int) or directory is not None:
            return None, None
        try:
            whole = os.path.abspath(os.fsdecode(path))
        except (TypeError, ValueError):
            return None, None
        if whole.startswith(self.kept) or "__pycache__" in whole:
            return None, None
        return whole, os.path.join(self.folder, "files", os.path.splitdrive(whole)[1].lstrip(os.sep))

    def led(self, path, directory=None):
        """Return the path to read: ours where the script has written it."""
        if not self.changed:
            return path
        whole, ours = self.place_of(path, directory)
        if whole is None:
            return path
        if self.is_there(ours):
            return ours
        if whole in self.gone:
            return os.path.join(self.folder, "gone")
        return path

    def is_there(self, path):
        try:
            self.real["lstat"](path)
        except OSError:
            return False
        return True

    def to_write(self, path, whole, ours, copies):
        """Make our copy of a path ready to be written; raises as the real one would without its folder."""
        folder = os.path.dirname(whole)
        mirrored = os.path.dirname(ours)
        if not self.is_there(mirrored):
            if not os.path.isdir(folder):
                raise FileNotFoundError(2, "No such file or directory", path)
            self.make_folders(mirrored)
        if copies and not self.is_there(ours) and whole not in self.gone and self.is_there(whole):
            with self.real_open(whole, "rb") as source, self.real_open(ours, "wb") as target:
                shutil.copyfileobj(source, target)
        self.gone.discard(whole)
        self.changed = True
        place = self.session.place()
        if place not in self.places:
            self.places.add(place)
            self.session.note("skipped", "{} is not written".format(whole), place)

    def make_folders(self, path):
        if path and not self.is_there(path):
            self.make_folders(os.path.dirname(path))
            self.real["mkdir"](path)

    # --- what replaces the functions

    def open(self, file, mode="r", *args, **kwargs):
        whole, ours = self.place_of(file)
        if whole is None or kwargs.get("opener") is not None:
            return self.real_open(file, mode, *args, **kwargs)
        if not WRITES.isdisjoint(mode):
            if self.special(whole):
                return self.real_open(file, mode, *args, **kwargs)
            if "x" in mode and (self.is_there(self.led(whole))):
                raise FileExistsError(17, "File exists", file)
            self.to_write(file, whole, ours, copies="w" not in mode)
            return self.real_open(ours, mode, *args, **kwargs)
        led = self.led(file)
        return self.real_open(file if led == file else led, mode, *args, **kwargs)

    def os_open(self, path, flags, mode=0o777, *, dir_fd=None):
        whole, ours = self.place_of(path, dir_fd)
        if whole is None or self.special(whole):
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
            self.to_write(path, whole, ours, copies=not flags & os.O_TRUNC)
            return self.real["open"](ours, flags | os.O_CREAT, mode)
        return self.real["open"](self.led(path), flags, mode)

    def special(self, path):
        """Whether it is a device or a pipe: nothing is kept there."""
        try:
            mode = self.real["stat"](path).st_mode
        except OSError:
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    def changing(self, name):
        """Return what replaces a function that changes files: it does it in our folder."""
        real, two = self.real[name], name in ("rename", "replace", "link", "symlink")

        def change(*args, **kwargs):
            paths = list(args[: 2 if two else 1])
            if not paths or kwargs.get("dir_fd") is not None or kwargs.get("src_dir_fd") is not None:
                return real(*args, **kwargs)
            whole, ours = self.place_of(paths[-1])
            if whole is None:
                first = self.led(paths[0]) if two else paths[0]
                return real(first, *args[1:], **kwargs)
            if name in ("unlink", "remove", "rmdir"):
                if not self.is_there(self.led(whole)):
                    raise FileNotFoundError(2, "No such file or directory", paths[0])
                self.gone.add(whole)
                self.changed = True
                return real(ours) if self.is_there(ours) else None
            if name == "mkdir":
                if self.is_there(self.led(whole)):
                    raise FileExistsError(17, "File exists", paths[0])
                self.to_write(paths[0], whole, ours, copies=False)
                return real(ours, *args[1:])
            if two:
                source = self.led(paths[0])
                self.to_write(paths[1], whole, ours, copies=False)
                if name == "symlink" or (name == "link" and source == paths[0]):
                    return None
                before, _ = self.place_of(paths[0])
                self.gone.add(before)
                if source == paths[0]:
                    return shutil.copyfile(source, ours) and None if os.path.isfile(source) else None
                return real(source, ours)
            if self.is_there(ours):  # chmod, utime, truncate
                return real(ours, *args[1:], **kwargs)
            return None

        return change

    def looking(self, name):
        """Return what replaces a function that looks at files: it sees what the script has written."""
        real = self.real[name]

        def look(path=".", *args, **kwargs):
            whole, ours = self.place_of(path, kwargs.get("dir_fd")) if self.changed else (None, None)
            if whole is None:
                return real(path, *args, **kwargs)
            if (
                name in ("listdir", "scandir")
                and self.is_there(ours)
                and whole not in self.gone
                and self.is_real(whole)
            ):
                return (
                    Entries(real, whole, ours, self.gone)
                    if name == "scandir"
                    else [
                        name
                        for name in dict.fromkeys(real(whole) + real(ours))
                        if os.path.join(whole, name) not in self.gone
                    ]
                )
            return real(self.led(path), *args, **kwargs)

        return look

    def is_real(self, path):
        try:
            return stat.S_ISDIR(self.real["stat"](path).st_mode)
        except OSError:
            return False


class Entries:
    """What os.scandir finds in a folder, and what the script has written there."""

    def __init__(self, real, folder, ours, gone):
        written = list(real(ours))
        names = {entry.name for entry in written}
        there = [e for e in real(folder) if e.name not in names and os.path.join(folder, e.name) not in gone]
        self.entries = iter(there + written)

    def __iter__(self):
        return self.entries

    def __next__(self):
        return next(self.entries)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def close(self):
        pass


CHANGES = (
    "mkdir",
    "unlink",
    "remove",
    "rmdir",
    "rename",
    "replace",
    "link",
    "symlink",
    "chmod",
    "utime",
    "truncate",
    "setxattr",
)
LOOKS = ("stat", "lstat", "listdir", "scandir", "access", "open", "listxattr", "getxattr", "readlink")
