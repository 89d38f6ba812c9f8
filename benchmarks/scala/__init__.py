"""The parts of ``scala_widths.py`` and ``scala_cost.py``: what is run, what is kept, and what is made of it."""
