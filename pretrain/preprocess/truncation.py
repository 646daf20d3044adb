"""How a question and its answer share the room of a row, as conversations are cut to length."""

from __future__ import annotations


def shares(question: int, answer: int, room: int) -> tuple[int, int]:
    """How many tokens of each are kept: the shorter one whole if it takes less than half.

    Otherwise each has its share of the room.
    """
    if answer * 2 < room:
        most = room
    elif question * 2 < room:
        most = room - question
    else:
        most = int(room * (answer / (question + answer)))
    kept = min(most, answer)
    return min(max(room - kept, 0), question), kept
