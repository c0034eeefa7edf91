"""Enrolment: a box asks for a certificate with a key of its own; an operator accepts it."""
