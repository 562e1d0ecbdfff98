"""A second project, differently laid out: support tickets as JSON lines, will one be escalated?"""
