"""The real scheduler in virtual time: a described crowd of users on a machine of which only the costs are known."""
