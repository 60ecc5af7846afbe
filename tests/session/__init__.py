"""How a session begins, is interrupted, takes other budgets and ends (vtensor/session)."""
