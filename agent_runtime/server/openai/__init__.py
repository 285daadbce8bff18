"""The routes below /v1, in OpenAI's format: chats, and edits as clients of hosted apply services send them."""
