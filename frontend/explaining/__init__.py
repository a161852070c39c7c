"""How `dodeca.explain` finds its answers.

programs    what is asked about: the terms of a program, and those of its kernels
laws        the rules, and what they did in an e-graph, as plain data
closure     equations between terms, and what follows from them
equality    a search that is watched, and the fewest rules and steps that an equality takes
conditions  where a rule applies, and which of its conditions stop it
wording     the answers, and the texts of terms
"""
