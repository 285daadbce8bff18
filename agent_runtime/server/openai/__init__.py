"""The routes below /v1: OpenAI's shape, in which clients of hosted services ask for answers and for merged files."""
