"""Commands for the terminal itself: completion and manual pages, made from the parser."""
