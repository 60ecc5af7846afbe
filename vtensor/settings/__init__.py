"""What a session is asked for, and what this machine has for it: arguments, memory that there is, groups' limits."""
