"""The parts of ``masktas_ablation.py``: what is run, how it is run, and what is made of it."""
