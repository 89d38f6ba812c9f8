"""How long a search will take and what it will occupy, before it starts and without a device."""
