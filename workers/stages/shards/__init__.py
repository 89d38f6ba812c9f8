"""A population measured by several hands: the trainer, more processes beside it, and helpers on other workers."""
