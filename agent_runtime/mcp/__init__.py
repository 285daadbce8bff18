"""An MCP server: agents read and edit the files of one folder through tools.

`places` is where the files are and who merges (this process, or a service), `tools` what an agent can call, `telling`
what it is answered, `serving` how they are reached: over standard input and output, or HTTP.
"""
