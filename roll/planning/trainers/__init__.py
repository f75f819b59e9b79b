"""What each of the trainers that come with this package keeps on its devices; their descriptions name these."""
