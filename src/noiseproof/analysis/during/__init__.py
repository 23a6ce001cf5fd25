"""What happened while runs were trained, from their records and recorded samples."""
