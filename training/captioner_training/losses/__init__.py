"""What a stage minimises: objectives, each a file with a class; the protocol is objective.py's."""
