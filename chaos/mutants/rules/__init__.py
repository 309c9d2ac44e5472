"""The mutants, a module a room of the house: what breaks a rule of that room stands there."""
