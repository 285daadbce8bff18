// Bundles the extension, and its README without what is only for those who have the source.

import fs from "node:fs";

import { build } from "esbuild";

const shared = { entryPoints: ["src/extension.ts"], bundle: true, external: ["vscode"], format: "cjs", minify: true };

fs.rmSync("dist", { recursive: true, force: true });
await build({ ...shared, outfile: "dist/node.js", platform: "node", target: "node20" });
await build({ ...shared, outfile: "dist/web.js", platform: "browser", target: "es2022", mainFields: ["module", "main"] });
fs.copyFileSync("node_modules/diff/LICENSE", "dist/LICENSE.diff.txt"); // the one package that is in the bundles
const readme = fs.readFileSync("README.md", "utf8").replace(/^!\[.*\n\n/m, "").replace(/^## Build[^]*/m, "");
fs.writeFileSync("dist/README.md", readme);
