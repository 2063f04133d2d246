"""Operations of instruments, from sizes alone; each formula is that of the algorithm, whichever device runs it."""
