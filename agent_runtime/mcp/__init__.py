"""An MCP server: agents read and edit the files of one folder through tools.

`backends` reads and merges files, in this process or through a service. `tools` defines the tools, `responses` their
answers. `server` serves them over standard input and output, or over HTTP.
"""
