"""Pure search algorithms: spaces, costs, constraints, evolution. No torch."""
