"""The leader's side: responses of the local broker become links where what they hold is stored."""
