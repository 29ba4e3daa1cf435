# Gives Doxygen a public header, line by line, so that numbers of lines stay: a comment before a declaration begins with
# /**, one after a field with /**<, and each header is a group whose title is the header's first sentence.
BEGIN { name = ARGV[1]; sub(/.*\//, "", name); group = name; sub(/\..*/, "", group) }
/\/\*/ || inside { inside = !/\*\//; gsub(/[\\@<#%]/, "\\\\&") } # nothing in a comment is a command or an element
/^CHOIR_C_BEGIN/ { $0 = "/** @addtogroup " group " */ /** @{ */" }
/^CHOIR_C_END/ { $0 = "/** @} */" }
NR == 1 { sub(/^\/\* /, "/** @defgroup " group " choir/" name ": ") }
/[;,}] *\/\* |[A-Z] +\/\* / { sub(/\/\* /, "/**< ") }
/^ *\/\* [^-]/ { sub(/\/\* /, "/** ") }
{ print }
