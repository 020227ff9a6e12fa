"""What others printed: throughputs, datasheets, the bibliography, and the reports that are audited."""
