"""What is stated before anything is measured: shapes, studies, implementations, the ladder."""
