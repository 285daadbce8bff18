// Writes a request as a command for a shell.

/**
 * A curl command for sh, bash and zsh that sends `body` to a URL. The body comes through a quoted here-document, in which
 * a shell expands nothing and which may be longer than an argument. With `needsToken`, it takes the token of $HUNK_TOKEN.
 */
export function curlCommand(url, body, needsToken) {
  const lines = [`curl -sS ${quote(url)} -H 'content-type: application/json'`];
  if (needsToken) lines.push(`  -H "authorization: Bearer $HUNK_TOKEN"`);
  lines.push("  --data-binary @- <<'HUNK'");
  return `${lines.join(" \\\n")}\n${escapeControls(JSON.stringify(body))}\nHUNK\n`;
}

function quote(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** JSON leaves DEL and the C1 controls as they are, which a terminal would act on when they are pasted. */
function escapeControls(json) {
  return json.replace(/[\u007f-\u009f\u2028\u2029]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
