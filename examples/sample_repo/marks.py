"""Works on the marks of one pupil, from 1 to 6."""


def average(marks):
    """The mean of all marks; 0 where there are none yet."""
    return sum(marks) / len(marks)


def best(marks):
    """The highest mark; 0 where there are none yet."""
    return max(marks, default=0)


def has_passed(marks, needed=4):
    """Whether the mean is good enough."""
    return average(marks) >= needed
