"""The pure core: decides what a step does, and learns what came of it."""
