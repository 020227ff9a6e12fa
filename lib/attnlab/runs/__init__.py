"""The run folder, where the half that measures and the half that infers meet: its layout, its rules and words."""
