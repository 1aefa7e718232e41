"""Data sets and transforms for the tests of mge.data; worker processes import this file by name."""

import os
import random
import signal
import sys
import time

import numpy as np

import mge.data as data
from mge.debug import debug


class Rows(data.Dataset):
    """Sample i is (a row of size values i, i)."""

    def __init__(self, count=10, size=3000):
        self.rows = np.arange(count, dtype=np.float32)[:, None] * np.ones(size, np.float32)

    def __getitem__(self, index):
        return self.rows[index], index

    def __len__(self):
        return len(self.rows)


class Numbers(data.Dataset):
    """Sample i is the int i; ``slow`` maps an index to seconds of waiting."""

    def __init__(self, count=10, slow=None):
        self.count = count
        self.slow = slow or {}

    def __getitem__(self, index):
        time.sleep(self.slow.get(index, 0))
        return index

    def __len__(self):
        return self.count


class Growing(Numbers):
    """Sample i is an array of 2000 * (i + 1) values, so that each batch needs a larger segment."""

    def __getitem__(self, index):
        return np.full(2000 * (index + 1), index)


class Failing(Numbers):
    """Sample 3 fails in a given way."""

    def __init__(self, how, count=8):
        super().__init__(count)
        self.how = how

    def __getitem__(self, index):
        if index == 3:
            getattr(self, self.how)()
        return np.full(3000, index)

    def raise_key_error(self):
        raise KeyError("no such picture")

    def raise_stop(self):
        raise StopIteration

    def raise_odd(self):
        raise OddError(1, 2)

    def leave(self):
        sys.exit(4)

    def exit_at_once(self):
        os._exit(3)

    def be_killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self):
        time.sleep(100)

    def nest(self):
        list(data.DataLoader(Numbers(), num_workers=1))


class OddError(Exception):
    """An exception that cannot be unpickled: it takes other arguments than it keeps."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class NoUnpickling(Numbers):
    """Can be pickled, and not unpickled."""

    def __setstate__(self, state):
        raise ValueError("state of another version")


class Facts(Numbers):
    """A sample is what a worker process sees: its id, mge's threads, and its place."""

    def __getitem__(self, index):
        info = data.get_worker_info()
        return os.getpid(), debug.threads, info.idx, info.worker


class Writing(Rows):
    """Changes its own array when a sample is read."""

    def __getitem__(self, index):
        self.rows[index] += 1
        return self.rows[index, 0]


class FullMemory(Rows):
    """Shared memory has no room, from the first sample on."""

    def __getitem__(self, index):
        data.shared_arrays._create = lambda name, size: None
        return super().__getitem__(index)


class Draws(data.transform.Transform):
    """Replaces a sample by one draw of each generator."""

    def __init__(self, everywhere=False):
        self.everywhere = everywhere

    def apply(self, sample):
        drawn = [data.current_rng().random()]
        if self.everywhere:
            drawn += [np.random.random(), random.random()]  # noqa: NPY002
        return np.array(drawn)


class Count(data.StreamDataset):
    """Yields 0, 1, ...; with several workers, each its own remainder. May fail at one number."""

    def __init__(self, count=10, fail_at=None, split=False):
        self.count = count
        self.fail_at = fail_at
        self.split = split

    def __iter__(self):
        info = data.get_worker_info() if self.split else None
        first, step = (info.idx, info.worker) if info else (0, 1)
        for number in range(first, self.count, step):
            if number == self.fail_at:
                raise OSError("the stream broke")
            yield number


class Endless(data.StreamDataset):
    """Yields rows without end."""

    def __iter__(self):
        number = 0
        while True:
            yield np.full(3000, number)
            number += 1
