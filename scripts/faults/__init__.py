"""The fault campaign: kills, damages, failed loads, long runs. Prints a table in Markdown.

Run by ``make faults`` (about ten minutes) and ``make faults FULL=1`` (about an hour), from the root of the
checkout. A check that cannot run here counts as failed, unless it is named with ``--may-miss``; that list is
printed.
"""
