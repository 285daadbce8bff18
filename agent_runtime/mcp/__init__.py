"""An MCP server: agents read and edit the files of one folder through tools.

`backends` reads and merges files, in this process or through a service. `tools` are the calls of an agent, `responses`
their answers. `server` serves them over standard input and output, or over HTTP.
"""
