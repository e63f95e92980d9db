# Adds $PATTERN as the last of the top-level imports, since later files count more; reads the file twice.
function added(line, from,    i, c) {
  for (i = from; i <= length(line); i++) {
    c = substr(line, i, 1)
    if (quote != "") { if (c == quote) quote = "" }
    else if (c == "#") return line
    else if (c == "]") {
      open = 0
      return substr(line, 1, i - 1) (last == "[" ? "" : last == "," ? " " : ", ") item substr(line, i)
    }
    else if (c == "\"" || c == "\047") quote = c
    if (c != " " && c != "\t") last = c
  }
  return line
}
BEGIN { item = "\"" ENVIRON["PATTERN"] "\"" }
NR == FNR && /^[ \t]*\[/ { table = 1 }
NR == FNR && !table && /^[ \t]*imports[ \t]*=/ { imports = FNR }
NR == FNR && !table && /^[ \t]*version[ \t]*=/ { version = FNR }
NR == FNR { next }
FNR == imports { open = 1; print added($0, index($0, "[")); next }
open { print added($0, 1); next }
{ print }
!imports && FNR == version { print "imports = [" item "]" }
