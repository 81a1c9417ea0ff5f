"""Commands for agents: their files, what they do now, and their topics.

- `config`, `deploy`: lines of settings, and files to install
- `doctor`: what is wrong, and whether a restart is safe
- `agent`: runs one
- `status`, `describe`: ask all of them
- `topics`, `pause`, `resume`: what is linked
- `gateway`: listeners for clients
"""
